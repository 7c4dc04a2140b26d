"""Leads people in browsers to their consent, and puts what the provider gives for it."""

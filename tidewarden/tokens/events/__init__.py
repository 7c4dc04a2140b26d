"""Tells the world what becomes of accounts: events, webhooks, companion tasks."""

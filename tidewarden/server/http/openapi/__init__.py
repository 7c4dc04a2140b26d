"""Describes the HTTP door for machines: OpenAPI 3.1, made of the routes' own types."""

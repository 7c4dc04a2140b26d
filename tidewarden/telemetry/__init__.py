"""Sends spans and metrics to a receiver of OpenTelemetry, where one is configured."""

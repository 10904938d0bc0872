"""Notification channels by REST."""

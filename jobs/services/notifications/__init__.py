"""Notification channels of users, and the sending of their messages."""

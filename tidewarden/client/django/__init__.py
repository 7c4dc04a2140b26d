"""
Runs the tasks of Django's Tasks framework on the queues of a cluster.

The framework is ``django.tasks`` of Django 6.0, or the package ``django-tasks`` before it. See
docs/django.md.
"""

from .backend import TidewardenBackend
from .worker import django_worker

__all__ = ["TidewardenBackend", "django_worker"]

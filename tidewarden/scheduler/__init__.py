"""Decides what happens because time passed: the leader's sweep, and schedules that put tasks."""

"""Serves the beanstalkd protocol: clients of beanstalkd reach the same queues."""

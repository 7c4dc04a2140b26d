"""Queues on three hosts of one machine, one a file: ours, NATS JetStream, RabbitMQ."""

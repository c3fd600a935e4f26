"""Servers of object storage for tests, each over a folder of this machine, on loopback, in a process of its own.

azure     Azurite, Microsoft's own emulator of Azure's blob service
gcs       fake-gcs-server, with writes of Google's XML interface translated in front of it
served    what tests use of each of them, and of the S3 gateway of support/buckets.py
fixtures  servers for tests
"""

"""A seeded simulation of managed placement: instances come and go while the leader's own function places tasks."""

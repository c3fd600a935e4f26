"""The sidecar: state beside an application in any language."""

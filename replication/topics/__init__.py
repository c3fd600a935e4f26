"""Topics of an application: names, policies, and the checks of what is there."""

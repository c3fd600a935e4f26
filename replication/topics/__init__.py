"""Topics of an application: names, policies, and checks of existing topics."""

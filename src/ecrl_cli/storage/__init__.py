"""The file-system interface: the only place where anything is synced or renamed."""

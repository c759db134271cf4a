"""The file-system seam: the only place in the house where anything is synced or renamed."""

"""The admission webhook that puts a decode worker beside an application."""

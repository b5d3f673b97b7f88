"""The operator: watches DecodePools, plans each one as a pure function of what is seen, and carries the plan out."""

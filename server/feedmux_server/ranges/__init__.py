"""Events that PlanRange has read, for ReadRange."""

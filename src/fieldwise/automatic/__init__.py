"""Find the best model for a table within a time budget.

The function is `fieldwise.auto`. The package has another name, because importing a module
`fieldwise.auto` would hide the function.
"""

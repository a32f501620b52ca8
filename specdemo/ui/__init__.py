"""The web page: reads Rounds and the store, never a model. One file per tab; ``app.launch`` starts it."""

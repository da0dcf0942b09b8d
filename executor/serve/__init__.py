"""An HTTP server with OpenAI's API over a scheduler: what a request may say, the thread that answers it, and what goes back."""

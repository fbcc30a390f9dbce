"""What reads tokens and gives states or logits, and where its weights come from."""

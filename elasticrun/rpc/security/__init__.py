"""Who may speak: tokens, MACs, TLS, tickets, admission and limits."""

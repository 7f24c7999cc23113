package dev.feedmux;

/** What a session hands out, in order: events, and notices between them. */
public sealed interface Item permits Event, Notice {}

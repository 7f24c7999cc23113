package dev.feedmux;

/** An item that a session returns, in order: an event, or a notice between events. */
public sealed interface Item permits Event, Notice {}

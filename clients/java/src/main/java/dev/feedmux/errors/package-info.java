/**
 * What can go wrong, as types. {@link dev.feedmux.errors.FeedmuxException} is the root; catch the subclass of what you
 * can do something about, and decide nothing by message text.
 */
@NullMarked
package dev.feedmux.errors;

import org.jspecify.annotations.NullMarked;

/**
 * The exceptions that the client throws. {@link dev.feedmux.errors.FeedmuxException} is the root. Catch the subclasses
 * that you can handle, and do not depend on the message text.
 */
@NullMarked
package dev.feedmux.errors;

import org.jspecify.annotations.NullMarked;

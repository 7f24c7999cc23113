package dev.feedmux;

import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;

/**
 * TLS settings, with PEM files.
 *
 * @param root the root certificates to trust; null means the system's roots
 * @param certificate the client certificate, for mutual TLS; needs {@code key}
 * @param key the private key of the certificate (PKCS #8)
 * @param serverName the name to check the server's certificate against; null means the target's host
 */
public record Tls(
        @Nullable Path root,
        @Nullable Path certificate,
        @Nullable Path key,
        @Nullable String serverName) {

    /** Checks that the certificate and its key are either both set or both null. */
    public Tls {
        if ((certificate == null) != (key == null)) {
            throw new IllegalArgumentException("mutual TLS needs both a certificate and its key");
        }
    }

    /** Returns settings that trust the system's roots. */
    public static Tls system() {
        return new Tls(null, null, null, null);
    }

    /** Returns settings that trust the roots in this file. */
    public static Tls root(Path root) {
        return new Tls(root, null, null, null);
    }

    /** Returns these settings with a client certificate, for mutual TLS. */
    public Tls withCertificate(Path chosen, Path itsKey) {
        return new Tls(root, chosen, itsKey, serverName);
    }

    /** Returns these settings with another name to check the server's certificate against. */
    public Tls withServerName(String name) {
        return new Tls(root, certificate, key, name);
    }

    ChannelCredentials credentials() {
        TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder();
        try {
            if (root != null) {
                builder.trustManager(root.toFile());
            }
            if (certificate != null && key != null) {
                builder.keyManager(certificate.toFile(), key.toFile());
            }
        } catch (IOException error) {
            throw new UncheckedIOException("a TLS file cannot be read: " + error.getMessage(), error);
        }
        return builder.build();
    }
}

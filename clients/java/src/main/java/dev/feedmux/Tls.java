package dev.feedmux;

import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;

/**
 * TLS by PEM files.
 *
 * @param root the certificates to trust; null is the system's roots
 * @param certificate with {@code key}: mutual TLS
 * @param key the private key of the certificate (PKCS #8)
 * @param serverName what the server's certificate is checked against, where it is not the target's host
 */
public record Tls(
        @Nullable Path root,
        @Nullable Path certificate,
        @Nullable Path key,
        @Nullable String serverName) {

    /** Certificate and key come together. */
    public Tls {
        if ((certificate == null) != (key == null)) {
            throw new IllegalArgumentException("mutual TLS needs both a certificate and its key");
        }
    }

    /** The system's roots. */
    public static Tls system() {
        return new Tls(null, null, null, null);
    }

    /** Roots of your own. */
    public static Tls root(Path root) {
        return new Tls(root, null, null, null);
    }

    /** With a client certificate: mutual TLS. */
    public Tls withCertificate(Path chosen, Path itsKey) {
        return new Tls(root, chosen, itsKey, serverName);
    }

    /** With another name to check the server's certificate against. */
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

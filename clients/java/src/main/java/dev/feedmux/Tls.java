package dev.feedmux;

import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * TLS settings, with PEM files. The files are read with every call and every stream: when they have changed, new ones use
 * a new connection, and open streams continue.
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

    /** Returns the contents of the files, which {@link #credentials} takes; empty where there is no file. */
    List<String> read() {
        try {
            return List.of(text(root), text(certificate), text(key));
        } catch (IOException error) {
            throw new UncheckedIOException("a TLS file cannot be read: " + error.getMessage(), error);
        }
    }

    ChannelCredentials credentials(List<String> contents) {
        TlsChannelCredentials.Builder builder = TlsChannelCredentials.newBuilder();
        try {
            if (root != null) {
                builder.trustManager(stream(contents.get(0)));
            }
            if (certificate != null) {
                builder.keyManager(stream(contents.get(1)), stream(contents.get(2)));
            }
        } catch (IOException error) {
            throw new UncheckedIOException("a TLS file cannot be read: " + error.getMessage(), error);
        }
        return builder.build();
    }

    private static String text(@Nullable Path file) throws IOException {
        return file == null ? "" : Files.readString(file, StandardCharsets.ISO_8859_1);
    }

    private static InputStream stream(String content) {
        return new ByteArrayInputStream(content.getBytes(StandardCharsets.ISO_8859_1));
    }
}

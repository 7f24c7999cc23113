package dev.feedmux.conformance;

import dev.feedmux.errors.FeedmuxException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.bson.Document;

/** The runner of the conformance scenarios: JSON lines in, JSON lines out. */
public final class Main {
    private Main() {}

    /** Runs until the end of standard input. */
    public static void main(String[] arguments) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Commands commands = new Commands();
        ExecutorService threads = Executors.newCachedThreadPool();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Document command = Document.parse(line);
            threads.execute(() -> {
                String reply = Json.write(reply(commands, command));
                synchronized (out) {
                    out.println(reply);
                }
            });
        }
        commands.reset();
        threads.shutdownNow();
    }

    private static Map<String, Object> reply(Commands commands, Document command) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("id", command.get("id"));
        try {
            reply.put("ok", commands.run(command));
        } catch (FeedmuxException error) {
            reply.put("error", Reports.error(error));
        } catch (RuntimeException error) {
            error.printStackTrace();
            reply.put("error", Map.of("type", "BadCommand", "message", error.toString()));
        }
        return reply;
    }
}

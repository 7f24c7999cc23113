// Prints the changes of shop.orders, resuming where the last run stopped. Ctrl-C ends it.
import { Client } from "feedmux";

const client = new Client(process.env.FEEDMUX_ENDPOINT ?? "localhost:7117", {
  apiKey: process.env.FEEDMUX_API_KEY,
});
const subscription = client.subscription("orders-to-console");
await subscription.create({ database: "shop", collection: "orders" });

const session = await subscription.open({
  onNotice: (notice) => console.error(notice.kind),
});
process.once("SIGINT", () => session.close());

for await (const event of session) {
  const { operationType, documentKey, fullDocument } = event.document;
  console.log(operationType, documentKey?._id, fullDocument);
  session.ack(event); // Everything up to here is processed, and will not come again.
}
await client.close();

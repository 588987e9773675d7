"""A service in another language: reads an event that we published, and publishes one for us.

Usage: foreign.py NATS_URL. Prints the order that it read, and answers with order 4711.
"""

import asyncio
import json
import sys
import uuid

import nats


async def main(url: str) -> None:
    client = await nats.connect(url)
    js = client.jetstream()
    subscription = await js.pull_subscribe("shop.orders.placed", durable="foreign")
    (message,) = await subscription.fetch(1, timeout=20)
    headers = message.headers
    assert headers["ce-specversion"] == "1.0", headers
    assert headers["ce-type"] == "shop.orders.placed", headers
    assert headers["ce-id"] == headers["Nats-Msg-Id"], headers
    uuid.UUID(headers["ce-id"])
    print("read", json.loads(message.data)["number"], flush=True)
    await message.ack()

    body = json.dumps({"number": 4711, "customer": None}).encode()
    await js.publish(
        "shop.orders.placed",
        body,
        headers={
            "ce-specversion": "1.0",
            "ce-id": "order-4711",  # no UUID: source and id together identify it
            "ce-source": "https://example.com/python%20shop",
            "ce-type": "shop.orders.placed",
        },
    )
    await client.close()


asyncio.run(main(sys.argv[1]))

// The Vercel AI SDK against a running node, by each of its providers for the node's APIs.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = `${process.env.LOCKSTEP_BASE_URL}/v1`;
const id = "smollm2-135m";
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({
  name: "lockstep",
  baseURL,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const models = {
  "openai chat": openai.chat(id),
  "openai responses": openai.responses(id),
  "openai compatible": compatible(id),
  anthropic: createAnthropic({ baseURL, apiKey: "none" })(id),
};
const prompt = "What is the weather in Paris?";
const common = { prompt, temperature: 0, maxOutputTokens: 64, maxRetries: 0 };
const schema = z.object({ city: z.enum(["Paris", "London"]) });
const cities = ["Paris", "London"];
const weather = tool({
  description: "The weather of a city",
  inputSchema: schema,
  execute: async ({ city }) => `It is sunny in ${city}.`,
});

for (const [name, model] of Object.entries(models)) {
  test(`${name}: a text and its stream are the same`, async () => {
    const whole = await generateText({ model, ...common });
    const stream = streamText({ model, ...common });
    const pieces = [];
    for await (const piece of stream.textStream) pieces.push(piece);
    assert.equal(pieces.join(""), whole.text);
    assert.ok(pieces.length > 3);
    assert.ok((await stream.usage).outputTokens > 0);
  });

  test(`${name}: a tool is called, and what it gave is told`, async () => {
    const answer = await generateText({
      model,
      ...common,
      tools: { weather },
      toolChoice: "required",
      stopWhen: stepCountIs(2),
    });
    const [call] = answer.steps[0].toolCalls;
    assert.ok(cities.includes(call.input.city));
    assert.equal(answer.steps[0].toolResults[0].output, `It is sunny in ${call.input.city}.`);
    assert.equal(answer.steps.length, 2);
  });

  test(`${name}: a streamed call adds up`, async () => {
    const stream = streamText({
      model,
      ...common,
      tools: { weather },
      toolChoice: { type: "tool", toolName: "weather" },
    });
    const [call] = await stream.toolCalls;
    assert.ok(cities.includes(call.input.city));
  });

  test(`${name}: JSON of a schema`, async () => {
    const asked = { model, ...common, output: Output.object({ schema }) };
    const whole = await generateText(asked);
    assert.ok(cities.includes(whole.output.city));
    const stream = streamText(asked);
    assert.deepEqual(await stream.output, whole.output);
  });
}

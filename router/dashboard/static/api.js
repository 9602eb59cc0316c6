// The one place that asks the router. Every fault comes out as an ApiError that says of what kind.

import { signal } from "./dom.js";
import { recallSession, rememberSession } from "./keep.js";

const BASE = new URL("../api/", import.meta.url);

/** The admin key, for this tab alone. */
let key = recallSession("admin-key");

/** "" where no key is needed or the one we have is right; else "ask" or "wrong". */
export const keyWanted = signal("");
/** How many answers are awaited. */
export const pending = signal(0);
/** Milliseconds of computing that the last view took. */
export const cost = signal(0);

class ApiError extends Error {
  /** `kind`: "network", "key", "refused" (4xx) or "server". */
  constructor(kind, message, { status = 0, code = "", param = "" } = {}) {
    super(message);
    Object.assign(this, { kind, status, code, param });
  }
}

export const useKey = (value) => {
  key = value;
  rememberSession("admin-key", value);
  keyWanted.value = "";
};

const fault = async (reply) => {
  let error = {};
  try {
    error = (await reply.json()).error || {};
  } catch {
    // Not our own words: a proxy in between. The status has to do.
  }
  const told = { status: reply.status, code: error.code || "", param: error.param || "" };
  const message = error.message || `${reply.status} ${reply.statusText}`;
  if (reply.status === 401 || reply.status === 403 && error.code === "invalid_api_key") {
    keyWanted.value = key ? "wrong" : "ask";
    return new ApiError("key", message, told);
  }
  return new ApiError(reply.status < 500 ? "refused" : "server", message, told);
};

/** A reply whose status is good. `signal` stops it; being stopped throws an AbortError. */
export const ask = async (path, { query = "", signal, body } = {}) => {
  const address = new URL(path, BASE);
  address.search = query;
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let reply;
  try {
    reply = await fetch(address, {
      method: body === undefined ? "GET" : "POST",
      body: body === undefined ? undefined : JSON.stringify(body),
      headers,
      signal,
      cache: "no-store",
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("network", String(error.message));
  }
  if (!reply.ok) throw await fault(reply);
  const took = /\bview;dur=([\d.]+)/.exec(reply.headers.get("server-timing") || "");
  if (took && path !== "meta") cost.value = Number(took[1]);
  return reply;
};

export const getJson = async (path, options) => {
  pending.value += 1;
  try {
    const reply = await ask(path, options);
    try {
      return await reply.json();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("network", String(error.message));
    }
  } finally {
    pending.value -= 1;
  }
};

export const requestPath = (id, rest = "") => `requests/${encodeURIComponent(id)}${rest}`;

/** What is shown, as a file. Answers how many rows there were where some were left out, else 0. */
export const download = async (view, format, query) => {
  const reply = await ask("export", { query: `view=${view}&format=${format}&${query}` });
  const named = /filename="?([^";]+)/.exec(reply.headers.get("content-disposition") || "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await reply.blob());
  link.download = named ? named[1] : `${view}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  return reply.headers.has("x-export-cut") ? Number(reply.headers.get("x-export-total")) : 0;
};

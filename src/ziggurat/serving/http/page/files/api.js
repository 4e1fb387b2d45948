// Requests to the server that this page came from. The token is in memory alone.

let token = "";

export class Refused extends Error {
  constructor(status, body, retryAfter) {
    super(body.error ?? `the server answered with status ${status}`);
    Object.assign(this, { status, hint: body.hint ?? "", rows: body.rows ?? [], code: body.code ?? "", retryAfter });
  }
}

export const useToken = (value) => { token = value.trim(); };

/** Returns the JSON of an answer; throws Refused for a refusal, and TypeError where there is no connection. */
export async function call(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = body === undefined ? { headers } : { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, { ...options, credentials: "omit", cache: "no-store" });
  let found;
  try {
    found = await answer.json();
  } catch {
    found = {};
  }
  if (!answer.ok) throw new Refused(answer.status, found, Number(answer.headers.get("Retry-After") ?? 0));
  return found;
}

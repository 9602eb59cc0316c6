"""The page at /dashboard: what this worker is doing now, out of /router/status."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Scenario Router</title>
<style>
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid #8884; }
  .up { color: #2a9d4a; } .down { color: #d1433b; } code { font-size: .9em; }
</style>
<h1>Scenario Router</h1>
<p id="state" role="status">Asking…</p>
<h2>Backends</h2>
<table><thead><tr><th>Name<th>State<th>Model<th>Dialect<th>Pool<th>In flight</tr></thead>
<tbody id="backends"></tbody></table>
<h2>Policy</h2>
<p id="policy"></p>
<h2>Request log</h2>
<p id="log"></p>
<script type="module">
  const at = (id) => document.getElementById(id);
  const cell = (text, kind) => {
    const td = document.createElement("td");
    td.textContent = text ?? "–";
    if (kind) td.className = kind;
    return td;
  };
  async function show() {
    try {
      const s = await (await fetch("/router/status")).json();
      const ready = s.ready ? "ready" : "not ready: " + s.reason;
      at("state").textContent = `Version ${s.version}, ${ready}, ${s.inflight} requests under way`;
      at("backends").replaceChildren(...s.backends.map((b) => {
        const row = document.createElement("tr");
        const state = b.draining ? "drained" : b.up ? b.state : "down: " + b.reason;
        row.append(cell(b.name), cell(state, b.up ? "up" : "down"), cell(b.label ?? b.model),
          cell(b.dialect), cell(b.pool), cell(`${b.inflight} of ${b.max_inflight}`));
        return row;
      }));
      const fault = s.policy.last_error ? " — last change refused: " + s.policy.last_error : "";
      at("policy").textContent =
        `${s.policy.hash}: ${s.policy.scenarios.join(", ")} (${s.policy.file})${fault}`;
      at("log").textContent = `${s.log.written} records in ${s.log.dir}, ${s.log.dropped} lost`
        + (s.log.fault ? ` — ${s.log.fault}` : "");
    } catch (error) {
      at("state").textContent = "The router does not answer: " + error;
    }
  }
  show();
  setInterval(show, 2000);
</script>
</html>
"""

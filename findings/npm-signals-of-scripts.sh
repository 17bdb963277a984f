#!/usr/bin/env bash
# npm 11.19.1: signals to a script of package.json, where `sh` is bash or dash.
#
# npm passes SIGINT and SIGTERM on to the shell that it started. bash replaces itself by the script, so Ctrl-C, which
# the terminal sends to all of them, is two signals for the script: a server that ends at once at the second signal
# never ends in order. dash stays as the parent and passes nothing on: after SIGTERM to npm, npm ends and the script
# goes on without a parent. With `exec` before the script, dash is like bash.
# Output seen: bash: 2 of SIGINT, ended by SIGTERM; dash: 1 of SIGINT, goes on after SIGTERM
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . npm@11.19.1 >/dev/null
cat > script.mjs <<'JS'
let seen = 0
process.on('SIGINT', () => { if (++seen === 1) setTimeout(() => { console.log(`${seen} of SIGINT`); process.exit() }, 1500) })
process.on('SIGTERM', () => process.exit())
setTimeout(() => {}, 60_000)
console.log(`pid ${process.pid}`)
JS
echo '{"name":"sample","scripts":{"wait":"node script.mjs"}}' > package.json
cat > sample.mjs <<'JS'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as pause } from 'node:timers/promises'
const isAlive = (pid) => { try { return process.kill(pid, 0) } catch { return false } }
for (const shell of ['bash', 'dash']) {
  const results = []
  // On a busy machine, the system can join two signals: up to six tries.
  for (const signal of [...Array(6).fill('SIGINT'), 'SIGTERM']) {
    if (signal === 'SIGINT' && results.some((text) => text.startsWith('2'))) continue
    // A group of its own, as in a terminal.
    const npm = spawn(process.execPath, ['node_modules/npm/bin/npm-cli.js', 'run', '-s', `--script-shell=/bin/${shell}`, 'wait'], { detached: true })
    let said = ''
    npm.stdout.setEncoding('utf8').on('data', (text) => { said += text })
    while (!said.includes('\n')) await pause(20)
    const pid = Number(/pid (\d+)/.exec(said)[1])
    if (signal === 'SIGINT') process.kill(-npm.pid, signal)
    else npm.kill(signal)
    await once(npm, 'exit')
    await pause(2000)
    results.push(signal === 'SIGINT' ? said.split('\n')[1] : isAlive(pid) ? 'goes on after SIGTERM' : 'ended by SIGTERM')
    if (isAlive(pid)) process.kill(pid, 'SIGKILL')
  }
  console.log(`${shell}: ${results.sort().slice(-2).join(', ')}`)
}
JS
seen=$(node sample.mjs)
echo "$seen"
[ "$seen" = 'bash: 2 of SIGINT, ended by SIGTERM
dash: 1 of SIGINT, goes on after SIGTERM' ]

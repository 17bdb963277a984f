// runs: one database, embedded; 15 s
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { startApp } from '../helpers/app.ts'
import { run as runProgram } from '../helpers/process.ts'
import { asToken, CLIENT, clientHome, otherServer, PLACE, placeWith } from '../helpers/strongroom.ts'
import { until } from '../helpers/until.ts'
import { checkOf, newKey, sealBlob } from '../../src/client/keys.ts'

// Signals and the terminal reach the command as if the client were not there.

const service = await startApp(t)
const caller = await placeWith(service, 'A=1\n')
const token = await asToken(service, caller)

/** A program that says which signals it gets, and ends with status 3 when it reads `quit`. */
const PROGRAM = ['INT', 'QUIT', 'HUP', 'USR1', 'USR2', 'WINCH'].map((name) => `trap 'echo got-${name}' ${name}`).join('; ') +
  "; trap 'echo got-TERM; exit 5' TERM; echo ready-$A; while :; do read line && [ \"$line\" = quit ] && exit 3; [ -n \"$line\" ] || sleep 0.05; done"
const count = (text: string, what: string) => text.split(what).length - 1

t.test('in the background, each signal to the client reaches the command once', async (t) => {
  for (const name of ['INT', 'HUP', 'USR1', 'USR2', 'QUIT']) {
    const { start } = clientHome(t, token)
    const child = start(['run', PLACE, '--', 'sh', '-c', PROGRAM])
    let [out, err] = ['', '']
    child.stdout!.on('data', (part) => { out += part })
    child.stderr!.on('data', (part) => { err += part })
    await until(() => out.includes('ready-1'))
    child.kill(`SIG${name}` as NodeJS.Signals)
    await until(() => out.includes(`got-${name}`))
    child.kill('SIGTERM')
    const [code] = await once(child, 'close')
    t.equal(code, 5, `SIG${name}: the status of the command`)
    t.strictSame([count(out, `got-${name}`), count(out, 'got-TERM')], [1, 1], `SIG${name}: ${out}`)
    t.notMatch(err, /Debugger/, 'no debugger is opened')
  }
})

t.test('before the command starts, SIGUSR1 ends the client and opens no debugger', async (t) => {
  const silent = await otherServer(t, () => {})
  const { start } = clientHome(t, { ...token, STRONGROOM_URL: silent.url })
  const child = start(['run', PLACE, '--', 'true'])
  let err = ''
  child.stderr!.on('data', (part) => { err += part })
  await until(() => silent.requests.length > 0)
  child.kill('SIGUSR1')
  await once(child, 'close')
  t.equal(err, '')
})

t.test('a signal before the command starts leaves no mounted value, and the command gets it', async (t) => {
  const { start, folder } = clientHome(t, token)
  const preload = join(folder, 'signal.mjs')
  writeFileSync(preload, `import fs from 'node:fs'
    import { syncBuiltinESMExports } from 'node:module'
    const { symlinkSync } = fs
    fs.symlinkSync = (...words) => { symlinkSync(...words); process.kill(process.pid, 'SIGTERM') }
    syncBuiltinESMExports()`)
  const child = start(['run', PLACE, '--mount', `A=${folder}/a`, '--', 'sh', '-c', 'sleep 30'], { env: { NODE_OPTIONS: `--import ${preload}` } })
  const [code] = await once(child, 'close')
  t.equal(code, 143)
  t.notOk(readdirSync(folder).includes('a'), 'the link is gone')
})

t.test('the client outlives a command that ignores SIGTERM', async (t) => {
  const { start } = clientHome(t, token)
  const child = start(['run', PLACE, '--', 'sh', '-c', "trap '' TERM; echo ready; read line; exit 6"])
  let out = ''
  child.stdout!.on('data', (part) => { out += part })
  await until(() => out.includes('ready'))
  child.kill('SIGTERM')
  child.kill('SIGTERM')
  child.stdin!.end('go\n')
  t.equal((await once(child, 'close'))[0], 6)
})

const hasPython = spawnSync('python3', ['-c', 'import pty']).status === 0

/** What a terminal showed, and how the command ended. */
async function onTerminal (t: Test, plan: string, script: string, more: readonly string[] = []) {
  const { env, folder } = clientHome(t, { ...token, TERM: 'dumb' })
  const command = [process.execPath, CLIENT, 'run', PLACE, ...more, '--', 'sh', '-c', script]
  const { stdout, stderr, code } = await runProgram('python3', ['test/client/terminal.py', plan, ...command], env)
  t.equal(code, 0, stderr)
  return { stdout, folder }
}

t.test('a terminal sends its signals to the command once, and the client waits for it', { skip: !hasPython && 'needs Python' }, async (t) => {
  for (const leader of ['', 'leader ']) {
    const { stdout } = await onTerminal(t, `${leader}wait=ready-1 key=03 wait=got-INT key=1c wait=got-QUIT type=quit`, PROGRAM)
    t.strictSame([count(stdout, 'got-INT'), count(stdout, 'got-QUIT')], [1, 1], stdout)
    t.match(stdout, /status 3/, 'the command read the terminal, and its status is the status')
  }
})

t.test('Ctrl-Z stops the client with the command, and both go on', { skip: !hasPython && 'needs Python' }, async (t) => {
  const { stdout } = await onTerminal(t, 'wait=ready key=1a stopped continue type=quit', 'echo ready; read line; echo line-$line; exit 8')
  t.match(stdout, /line-quit/)
  t.match(stdout, /status 8/)
})

t.test('a hangup reaches the command once if the client leads the session', { skip: !hasPython && 'needs Python' }, async (t) => {
  const { folder, env } = clientHome(t, { ...token, TERM: 'dumb' })
  const file = join(folder, 'hangups')
  const script = `trap 'echo HUP >>${file}; sleep 0.3; exit 4' HUP; echo ready; while :; do sleep 0.05; done`
  const { code, stdout, stderr } = await runProgram('python3', [
    'test/client/terminal.py', 'leader wait=ready hangup', process.execPath, CLIENT, 'run', PLACE, '--', 'sh', '-c', script
  ], env)
  t.equal(code, 0, stderr)
  t.match(stdout, /status 4/)
  t.equal(readFileSync(file, 'utf8'), 'HUP\n')
})

t.test('after a terminal is gone, each hangup sent to the client still reaches the command', { skip: !hasPython && 'needs Python' }, async (t) => {
  const { folder, env } = clientHome(t, { ...token, TERM: 'dumb' })
  const [hangups, parent] = [join(folder, 'hangups'), join(folder, 'parent')]
  const lines = () => existsSync(hangups) ? readFileSync(hangups, 'utf8').split('\n').length - 1 : 0
  const script = `n=0; trap 'echo HUP >>${hangups}; n=$((n+1)); [ $n = 3 ] && exit 4' HUP
    echo $PPID >${parent}; echo ready; while :; do sleep 0.05; done`
  t.teardown(() => { try { process.kill(Number(readFileSync(parent, 'utf8')), 'SIGTERM') } catch { /* It has ended. */ } })
  // The shell that leads the session ends at the hangup, so the system tells the group.
  const shell = `"$0" "$1" run ${PLACE} -- sh -c "$2"; exit $?`
  const ended = await runProgram('python3', [
    'test/client/terminal.py', 'leader wait=ready hangup', 'sh', '-c', shell, process.execPath, CLIENT, script
  ], env)
  t.match(ended, { code: 0, stdout: /signal 1/ }, ended.stderr)
  for (const count of [1, 2]) {
    await until(() => lines() === count)
    await sleep(300)
    t.equal(lines(), count)
    process.kill(Number(readFileSync(parent, 'utf8')), 'SIGHUP')
  }
  await until(() => lines() === 3)
})

t.test('a key string and a value are asked for on the terminal, and not shown', { skip: !hasPython && 'needs Python' }, async (t) => {
  const ours = await service.organization()
  const key = await newKey('the key string of this project')
  const { call, organization: o } = ours
  await call('POST', `/${o}/projects`, { name: 'Ours', slug: 'ours', storage_mode: 'client', ...checkOf(key) })
  await call('POST', `/${o}/secrets/store`, { project: 'ours', content: await sealBlob(key, 'A=opened\n'), key_proof: key.proof })
  const { env } = clientHome(t, { ...await asToken(service, ours), TERM: 'dumb' })
  const shown = await runProgram('python3', [
    'test/client/terminal.py', 'wait=Key type=the\u00a0key', process.execPath, CLIENT, 'run', 'ours', '--', 'true'
  ], env)
  t.match(shown.stdout, /status 125/)
  t.notMatch(shown.stdout, /the\u00a0key/)
  const asked = await runProgram('python3', [
    'test/client/terminal.py', 'wait=Value type=typed', process.execPath, CLIENT, 'set', 'TYPED', PLACE
  ], { ...env, ...token })
  t.match(asked.stdout, /status 0/)
  t.notMatch(asked.stdout.replace('TYPED', ''), /typed/)
  t.equal((await clientHome(t, token).run(['get', 'TYPED', PLACE])).stdout, 'typed')
})

t.test('a pasted text of several lines is refused, and Ctrl-U clears the line', { skip: !hasPython && 'needs Python' }, async (t) => {
  const { env, run } = clientHome(t, { ...token, TERM: 'dumb' })
  for (const [plan, status, value] of [
    ['type=-----BEGIN\rsecond', 1, ''], ['type=one\ntwo\n', 1, ''], ['key=1b5b44 type=arrow', 1, ''],
    ['key=61 key=15 type=a\tb', 0, 'a\tb'], ['type=one-line\r\n', 0, 'one-line'], ['key=61620d0a', 0, 'ab'], ['key=610a', 0, 'a']
  ] as const) {
    const { stdout } = await runProgram('python3', [
      'test/client/terminal.py', `wait=Value ${plan}`, process.execPath, CLIENT, 'set', 'PASTED', PLACE
    ], env)
    t.match(stdout, new RegExp(`status ${status}`), plan)
    if (status === 1) t.match(stdout, /several lines or control characters/)
    else t.equal((await run(['get', 'PASTED', PLACE])).stdout, value)
  }
})

t.test('a client in a pipe and in `sh -c` passes bytes and the status on', async (t) => {
  const { env } = clientHome(t, token)
  const piped = await runProgram('sh', ['-c', `printf 'a\\nb' | "$0" "$1" run ${PLACE} -- cat; exit $?`, process.execPath, CLIENT], env)
  t.match(piped, { code: 0, stdout: 'a\nb' })
  const head = await runProgram('sh', ['-c', `"$0" "$1" run ${PLACE} -- sh -c 'yes; echo $? >&2' | head -n 1`, process.execPath, CLIENT], env)
  t.match(head, { code: 0, stdout: 'y\n' })
  t.notMatch(head.stderr, /Broken pipe/, 'a pipe without a reader ends the command as usual')
})

const mayUnshare = process.platform === 'linux' && spawnSync('unshare', ['--pid', '--fork', 'true']).status === 0

t.test('as process 1, the client passes signals on or is replaced by the command', { skip: !mayUnshare && 'needs a PID namespace' }, async (t) => {
  const { env } = clientHome(t, token)
  const { spawn } = await import('node:child_process')
  const child = spawn('unshare', ['--pid', '--fork', process.execPath, CLIENT, 'run', PLACE, '--', 'sh', '-c', PROGRAM], { env, stdio: ['pipe', 'pipe', 'pipe'] })
  let [out, err] = ['', '']
  child.stdout.on('data', (part) => { out += part })
  child.stderr.on('data', (part) => { err += part })
  await until(() => out.includes('ready-1'))
  const inner = Number(readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim())
  process.kill(inner, 'SIGTERM')
  const [code] = await once(child, 'close')
  t.equal(code, 5)
  t.equal(count(out, 'got-TERM'), 1)
  if (Number(process.versions.node.split('.')[0]) < 26) t.match(err, /--init/)
})

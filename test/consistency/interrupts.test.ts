// runs: one database; 25 s
import { spawn, spawnSync, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import { createReadStream, createWriteStream, existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import postgres from 'postgres'
import t, { type Test } from 'tap'
import { ulid } from 'ulidx'
import { lines } from '../../src/commands/common/progress.ts'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { ACTIVITY, startIsolatedApp, type TestApp } from '../helpers/app.ts'
import { LONG, sample } from '../helpers/long.ts'
import { CLI, cli, command, emptyPlace, scratchDirectory } from '../helpers/process.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(300_000)

type Env = Record<string, string>

const { PATH, HOME, NODE_OPTIONS = '' } = process.env
const hasTerminals = spawnSync('script', ['--version']).status === 0 && spawnSync('mkfifo', ['--version']).status === 0
const skip = !hasTerminals && 'script of util-linux is not installed'

/** A command whose standard error is a pseudo terminal. `redirect` is shell text, such as `< file`. */
function inTerminal (t: Test, args: string[], env: Env, redirect = '') {
  const text = [process.execPath, CLI, ...args].map((word) => `'${word}'`).join(' ')
  const child = spawn('script', ['-qec', `exec ${text} ${redirect}`, '/dev/null'], {
    env: { PATH, HOME, NODE_OPTIONS, TERM: 'xterm', SHELL: '/bin/sh', ...env }, stdio: ['pipe', 'pipe', 'inherit']
  })
  t.teardown(() => child.kill('SIGKILL'))
  let shown = ''
  child.stdout.setEncoding('utf8').on('data', (more: string) => { shown += more })
  child.stdin.on('error', () => {})
  const ended = once(child, 'close').then(([code]) => code as number)
  return {
    ended,
    shown: () => shown,
    isRunning: () => child.exitCode === null,
    /** Resolves when the terminal shows the text, or when the command has ended. */
    async untilShown (text: RegExp) {
      await until(() => text.test(shown) || child.exitCode !== null, { every: 5, within: 120_000 })
    },
    /** Ctrl-C; returns the exit status and what the terminal shows after it. */
    async interrupt () {
      const from = shown.length
      child.stdin.write('\x03')
      const code = await ended
      return { code, text: shown.slice(from).replaceAll('\r', '') }
    }
  }
}

/** A named pipe, from which a command reads or into which it writes. */
function fifo (t: Test) {
  const path = join(scratchDirectory(t), 'pipe')
  spawnSync('mkfifo', [path])
  return path
}

const ROWS = 20_000
const EVENTS = 3_000
const folder = scratchDirectory(t)
const exported = join(folder, 'export')
const backedUp = join(folder, 'backup')
const deleted = ulid()
let service: TestApp
let env: Env
let o: string
let whole: Buffer
/** A command without a terminal that waits for its input during the tests. */
let waiting: ChildProcessByStdio<Writable, null, Readable>

t.before(async () => {
  // This test has its own database, because it takes the database away, and interrupts commands that change all of it.
  service = await startIsolatedApp(t)
  ;({ env } = service)
  const caller = await service.organization()
  o = caller.organization
  await caller.call('POST', `/${o}/projects`, { name: 'Orbit' })
  await service.sql(`INSERT INTO sign_in_failures (key, failures)
    SELECT decode(lpad(to_hex(n), 64, '0'), 'hex'), 1 FROM generate_series(1, ${ROWS}) n`)
  // `audit export` does not verify the events.
  await service.sql(`INSERT INTO audit_events
      (organization_id, seq, action, actor_type, resource_type, user_agent, chain_kid, mac)
    SELECT '${deleted}', n, 'secret.read', 'operator', 'secret', repeat('x', 200), 'none', '\\x00'
    FROM generate_series(1, ${EVENTS}) n`)
  // The embedded database has to be closed before commands open it.
  if (!ON_POSTGRES) {
    await service.app.close()
    await service.database.close()
  }
  writeFileSync(exported, (await command(['audit', 'export', '--organization', o], env)).stdout)
  const { code, stderr } = await command(['backup', backedUp], env)
  if (code !== 0) throw new Error(stderr)
  whole = readFileSync(backedUp)
  waiting = spawn(process.execPath, [CLI, 'audit', 'verify', '--file', '-'], {
    env: { PATH, HOME, NODE_OPTIONS, MASTER_KEY: env.MASTER_KEY! }, stdio: ['pipe', 'ignore', 'pipe']
  })
  waiting.stdin.on('error', () => {})
  // At least one chunk, so that the verification has begun.
  waiting.stdin.write(readFileSync(exported).subarray(0, 100))
})
t.teardown(() => waiting?.kill('SIGKILL'))

t.test('an interrupted backup leaves no file', { skip }, async (t) => {
  const dir = scratchDirectory(t)
  for (const share of LONG ? [0, 30, 60] : [30]) {
    // Repeats the command until the interrupt comes at this share, and not after the end of the command.
    for (let isInterrupted = false; !isInterrupted;) {
      const file = join(dir, `backup-${ulid()}`)
      const backup = inTerminal(t, ['backup', file], env)
      await backup.untilShown(share === 0 ? /Backing up/ : new RegExp(`[${share / 10}-9]\\d %`))
      const { code, text } = await backup.interrupt()
      if (code === 0) continue
      isInterrupted = true
      t.equal(code, 130)
      t.match(text, /Interrupted\. No file was written\.\n$/)
      t.match(backup.shown(), /Backing up [#-]{24} \d+ of \d+ rows, \d+ %/)
      t.notOk(existsSync(file))
    }
  }
  t.strictSame(readdirSync(dir).filter((name) => statSync(join(dir, name)).size === 0), [], 'and no draft')
})

/** Interrupts a command that reads a pipe, after it has read shares of `content`. */
async function readingPipe (
  t: Test, args: (pipe: string) => { args: string[], redirect?: string }, place: Env, content: Buffer,
  step: RegExp, last: RegExp, shares = LONG ? [0.01, 0.4, 0.9] : [0.4]
) {
  for (const share of shares) {
    const pipe = fifo(t)
    const { args: words, redirect } = args(pipe)
    const run = inTerminal(t, words, place, redirect)
    const input = createWriteStream(pipe)
    input.on('error', () => {})
    const at = Math.floor(content.length * share)
    input.write(content.subarray(0, at))
    await run.untilShown(step)
    // Backpressure: the command has read all but what the pipe and the stream hold.
    await until(() => input.writableLength <= 70_000, { every: 5 })
    const ended = run.interrupt()
    await run.untilShown(/Stopping/)
    input.end(content.subarray(at))
    const { code, text } = await ended
    input.destroy()
    t.equal(code, 130, `${words.join(' ')} at ${share}`)
    t.match(text, last)
    t.match(run.shown(), step)
  }
}

const MAX_ATTEMPTS = 20

/** Interrupts a command in a step. Repeats the command until the interrupt comes in this step, and not later. */
async function inStep (t: Test, step: RegExp, args: string[], placeOf: () => Promise<Env> | Env, last: RegExp) {
  for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
    const run = inTerminal(t, args, await placeOf())
    await run.untilShown(step)
    const { code, text } = await run.interrupt()
    if (code === 130 && last.test(text)) {
      t.pass(`${args[0]} in ${step}`)
      return
    }
    t.comment(`${args[0]} came further than ${step}: ${code} ${text.trim().split('\n').at(-1)}`)
  }
  t.fail(`${args[0]} was never interrupted in ${step}`)
}

t.test('an interrupted restore leaves an empty database', { skip }, async (t) => {
  let place: Env = {}
  const emptyOne = async () => {
    place = { ...await emptyPlace(t), MASTER_KEY: env.MASTER_KEY! }
    return place
  }
  for (const step of LONG ? [/Comparing [#-]{24} /, /Verifying the backup [#-]{24} /] : []) {
    await inStep(t, step, ['restore', backedUp], emptyOne,
      /Interrupted\. Nothing was restored, and the database was not changed\.\n$/)
  }
  if (!LONG) await emptyOne()
  await readingPipe(t, (pipe) => ({ args: ['restore', '-'], redirect: `< ${pipe}` }), place, whole,
    /Restoring: \d+\.\d MiB/, /Interrupted\. Nothing was restored, and the database was not changed\.\n$/, [0.4])
  const restored = inTerminal(t, ['restore', backedUp], place)
  t.equal(await restored.ended, 0)
  t.match(restored.shown(), /Verifying the backup [#-]{24} /)
  t.match(restored.shown(), /Restoring [#-]{24} \d+\.\d of \d+\.\d MiB, \d+ %/)
  t.match(restored.shown(), /Comparing [#-]{24} \d+ of \d+ rows/)
  t.match(restored.shown(), /Restored 1 organization,/)
})

t.test('an interrupted drill removes its database', {
  // In `npm test`, backup/backup interrupts a command `drill`.
  skip: skip || (!LONG && 'runs in npm run test:proofs')
}, async (t) => {
  const TMPDIR = scratchDirectory(t)
  const place = { TMPDIR, MASTER_KEY: env.MASTER_KEY! }
  const last = /Interrupted\. The drill is incomplete\. Its temporary database was removed\.\n$/
  await readingPipe(t, (pipe) => ({ args: ['drill', '-'], redirect: `< ${pipe}` }), place, whole,
    /Restoring: \d+\.\d MiB/, last, LONG ? [0.4] : [])
  for (const step of sample([/Opening [#-]{24} /, /Comparing [#-]{24} /], 2)) await inStep(t, step, ['drill', backedUp], () => place, last)
  t.strictSame(readdirSync(TMPDIR), [])
})

t.test('an interrupted verification of the audit says that it is incomplete', { skip }, async (t) => {
  await readingPipe(t, (pipe) => ({ args: ['audit', 'verify', '--file', pipe] }), { MASTER_KEY: env.MASTER_KEY! },
    readFileSync(exported), /Verifying: \d+\.\d MiB/, /Interrupted\. The verification is incomplete\. Nothing was changed\.\n$/)
  const verified = inTerminal(t, ['audit', 'verify', '--organization', o], env)
  t.equal(await verified.ended, 0)
  t.match(verified.shown(), /Verifying [#-]{24} \d+ of \d+ events, \d+ %/)
  const json = inTerminal(t, ['audit', 'verify', '--organization', o, '--json'], env)
  t.equal(await json.ended, 0)
  t.match(JSON.parse(json.shown()), { organization: o, broken: null }, 'nothing but JSON')
})

t.test('an interrupted export of the audit says that its last line is missing', { skip }, async (t) => {
  for (const read of LONG ? [0, 1, 2] : [1]) {
    const pipe = fifo(t)
    const run = inTerminal(t, ['audit', 'export', '--organization', deleted], env, `> ${pipe}`)
    const output = createReadStream(pipe, { highWaterMark: 1024 })
    const chunks = output[Symbol.asyncIterator]()
    let text = String((await chunks.next()).value)
    // A page of 500 events is larger than the pipe, so the export waits in the middle of a page.
    while (text.split('\n').length < read * 1_000) text += String((await chunks.next()).value)
    await run.untilShown(/Exporting/)
    const ended = run.interrupt()
    await run.untilShown(/Stopping/)
    for await (const chunk of { [Symbol.asyncIterator]: () => chunks }) text += String(chunk)
    const { code, text: shown } = await ended
    t.equal(code, 130)
    t.match(shown, /Interrupted\. The export is incomplete: its last line is missing, so `audit verify --file` refuses it\.\n$/)
    t.notMatch(text, /"organizations":/)
    t.match(run.shown(), /Exporting: \d+ events/)
  }
})

t.test('Ctrl-C before a command begins says that nothing was written', async (t) => {
  // The signal comes as soon as the process handles it. From outside, a process on a newer Node.js would get it later.
  const early = `--import data:text/javascript,${encodeURIComponent(`
    const { on } = process
    process.on = (name, ...more) => {
      on.call(process, name, ...more)
      if (name === 'SIGINT') {
        process.on = on
        process.emit('SIGINT', 'SIGINT')
      }
      return process
    }`)}`
  const file = join(scratchDirectory(t), 'never')
  // The sample contains a command that writes a file, and then a command that creates a database.
  for (const args of sample([
    ['backup', file], ['drill', backedUp], ['rewrap'], ['migrate'], ['restore', backedUp], ['audit', 'verify'],
    ['audit', 'export'], ['user', 'list']
  ], 4)) {
    const place = args[0] === 'restore' ? { DATA_DIR: join(scratchDirectory(t), 'data'), MASTER_KEY: env.MASTER_KEY! } : env
    t.same(await cli(args, { ...place, NODE_OPTIONS: `${NODE_OPTIONS} ${early}` }), {
      code: 130, stdout: '', stderr: 'Interrupted. Nothing was written.\n'
    }, args.join(' '))
    if (place.DATA_DIR !== env.DATA_DIR) t.notOk(existsSync(place.DATA_DIR!))
  }
  t.notOk(existsSync(file))
})

t.test('on PostgreSQL', { skip: skip || (!ON_POSTGRES && 'the embedded database has one session') }, async (t) => {
  const sessionOf = (t: Test, url: string) => {
    const session = postgres(url, { max: 1, onnotice: () => {} })
    t.teardown(() => session.end({ timeout: 2 }))
    return session
  }

  const waitsForLock = async (run: ReturnType<typeof inTerminal>) => {
    await until(async () => !run.isRunning() || (await service.sql(`SELECT FROM ${ACTIVITY}
      WHERE datname = current_database() AND wait_event_type = 'Lock'`)).length > 0, { every: 20 })
  }

  await t.test('an interrupted verification does not wait for a locked table', async (t) => {
    const session = sessionOf(t, env.DATABASE_URL!)
    await session.unsafe('BEGIN; LOCK TABLE audit_events IN ACCESS EXCLUSIVE MODE')
    const verify = inTerminal(t, ['audit', 'verify', '--organization', o], env)
    await waitsForLock(verify)
    const { code, text } = await verify.interrupt()
    t.equal(code, 130)
    t.match(text, /Interrupted\. The verification is incomplete\. Nothing was changed\.\n$/)
    await session.unsafe('ROLLBACK')
  })

  await t.test('an interrupted rewrap keeps the values that it re-wrapped, and continues', async (t) => {
    const { text: newest } = generateMasterKey()
    const place = { ...env, MASTER_KEY: newest, MASTER_KEYS_PREVIOUS: env.MASTER_KEY! }
    const session = sessionOf(t, env.DATABASE_URL!)
    const tables = { service_keys: '', organizations: '', encryption_keys: `WHERE organization_id = '${o}'` }
    for (const [table, locked] of Object.entries(tables).filter(([table]) => LONG || table === 'organizations')) {
      await session.unsafe(`BEGIN; SELECT FROM ${table} ${locked} FOR UPDATE`)
      const rewrap = inTerminal(t, ['rewrap'], place)
      await rewrap.untilShown(/Re-wrapping [#-]{24} \d+ of \d+ values/)
      await waitsForLock(rewrap)
      const { code, text } = await rewrap.interrupt()
      t.equal(code, 130)
      t.match(text, table === 'service_keys'
        ? /Interrupted\. No value was re-wrapped\.\n$/
        : /Interrupted\. \d+ values? re-wrapped onto master key \S+ and stay so\. Run rewrap again for the others; /)
      await session.unsafe('ROLLBACK')
    }
    const ended = await command(['rewrap'], place)
    t.match(ended, { code: 0, stdout: /wraps nothing any more/ })
  })

  await t.test('an interrupted migration changes nothing, and continues', async (t) => {
    const place: Env = { ...await emptyPlace(t), MASTER_KEY: env.MASTER_KEY! }
    const session = sessionOf(t, place.DATABASE_URL!)
    // Another session creates a table of the same name without a commit, so the command's CREATE TABLE waits.
    for (const table of sample(['teams', 'organizations', 'audit_events'], 3)) {
      await session.unsafe(`BEGIN; CREATE TABLE ${table} (id int)`)
      const migrate = inTerminal(t, ['migrate'], place)
      await migrate.untilShown(/Migration 1 of \d+ [#-]{24} \d+ of \d+ statements/)
      const { code, text } = await migrate.interrupt()
      t.equal(code, 130)
      t.match(text, /Interrupted\. The schema was not changed\. Run migrate again\.\n$/)
      await session.unsafe('ROLLBACK')
      t.strictSame([...await session`SELECT FROM pg_tables WHERE schemaname = 'public'`], [])
    }
    t.match(await command(['migrate'], place), { code: 0, stdout: /up to date/ })
  })
})

t.test('without a terminal, progress is a line at each interval', async (t) => {
  const shown: string[] = []
  const { write } = process.stderr
  t.teardown(() => { process.stderr.write = write })
  process.stderr.write = ((text: string) => shown.push(text)) as unknown as typeof write
  const display = lines(1)
  display.begin('Restoring', 'bytes', 4 * 2 ** 20)
  display.advance(2 ** 20)
  await until(() => shown.length > 0, { every: 1 })
  display.begin('Exporting', 'events', undefined)
  display.advance(7)
  await until(() => shown.at(-1)!.includes('Exporting'), { every: 1 })
  display.end()
  process.stderr.write = write
  t.match(shown[0], /^Restoring: 1\.0 of 4\.0 MiB, 25 %, 1 s left\n$/)
  t.equal(shown.at(-1), 'Exporting: 7 events\n')
})

t.test('a command without a terminal writes such a line after ten seconds, and says at a signal what is left', async (t) => {
  let shown = ''
  waiting.stderr.setEncoding('utf8').on('data', (more: string) => { shown += more })
  await until(() => shown.includes('\n'), { every: 50 })
  t.match(shown, /^Verifying: 0\.0 MiB\n/)
  waiting.kill('SIGINT')
  const [code] = await once(waiting, 'close')
  t.equal(code, 130)
  t.match(shown, /\nInterrupted\. The verification is incomplete\. Nothing was changed\.\n$/)
})

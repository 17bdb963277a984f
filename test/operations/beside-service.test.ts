// runs: no database; 25 s
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import { join } from 'node:path'
import { sql } from 'drizzle-orm'
import t from 'tap'
import { ulid } from 'ulidx'
import { generateMasterKey } from '../../src/crypto/keyring.ts'
import { connect } from '../../src/db/database.ts'
import { CLI, cli, command, scratchDirectory, startServer, type Server } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { client, makeLevels, patient, rotate, store } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

t.setTimeout(600_000)

const [OLD, NEW] = ['k1', 'k2'].map((id) => generateMasterKey().text.replace(/^[^:]+/, id)) as [string, string]
const env = { DATA_DIR: scratchDirectory(t), PORT: '0' }
let owner: NonNullable<Server['first']>

t.test('the audit commands give beside a service with the embedded database what they give without it', async (t) => {
  const server = await startServer(t, env)
  owner = server.first!
  const id = owner.organization
  const send = patient(client(server.address, owner))
  const [level] = await makeLevels(send, 'orbit', ['live'])
  for (let i = 0; i < 3; i++) await store(send, level!, `A=${i}`)
  const since = new Date().toISOString()
  await store(send, level!, 'A=later')

  t.match(await cli(['audit', 'rotate-key', '--organization', id], env), {
    code: 0, stdout: new RegExp(`^${id}: events from \\d+ on use the key \\w+\n$`), stderr: ''
  })
  t.match(await command(['audit', 'rotate-key', '--all'], env), { code: 0, stdout: new RegExp(`^${id}: `) })

  const verified = JSON.parse((await command(['audit', 'verify', '--json'], env)).stdout)
  t.match(verified, { organization: id, after: null, broken: null })
  const anchors = join(env.DATA_DIR, 'anchors.log')
  const lost = ulid()
  const anchorOf = (organization: string, mac: string) =>
    `${JSON.stringify({ msg: 'audit anchor', organization, sequence: verified.last, mac })}\n`
  const wrong = anchorOf(id, verified.head.replace(/^./, (digit: string) => digit === '0' ? '1' : '0'))
  writeFileSync(anchors, anchorOf(id, verified.head) + anchorOf(lost, verified.head))

  const slug = (await command(['organization', 'list'], env)).stdout.split('\t')[1]!
  const questions: [args: string[], code: number, input?: string][] = [
    [['audit', 'export'], 0],
    [['audit', 'export', '--organization', slug, '--since', since], 0],
    [['audit', 'export', '--organization', 'none'], 1],
    [['audit', 'verify', '--json', '--organization', slug, '--since', since], 0],
    [['audit', 'verify', '--organization', 'none'], 2],
    [['audit', 'verify', '--anchors', '-'], 1, wrong],
    [['audit', 'verify', '--anchors', `${anchors}.none`], 2],
    [['audit', 'verify', '--anchors', anchors], 1],
    [['audit', 'verify', '--anchors', anchors, '--organization', id.toLowerCase()], 0],
    [['audit', 'verify', '--anchors', anchors, '--organization', lost], 1]
  ]
  const answers = async () => {
    const all = []
    for (const [args, , input] of questions) all.push(await (input ? cli(args, env, input) : command(args, env)))
    return all
  }
  const live = await answers()
  live.forEach(({ code, stderr }, i) => t.equal(code, questions[i]![1], `${questions[i]![0].join(' ')}: ${stderr}`))
  t.match(live.at(-1)!.stdout, new RegExp(`^${lost}: event 1 is missing`))
  const other = readFileSync(join(env.DATA_DIR, 'master.key'), 'utf8').split(':')[0] + ':' + NEW.split(':')[1]
  t.match(await command(['audit', 'verify'], { ...env, MASTER_KEY: other }), {
    code: 2, stdout: '', stderr: 'The audit chain key cannot be unwrapped\n'
  }, 'the command verifies with its own master key')

  /** Sends a request as commands of 0.1.0 do. */
  const ask = async (command: string[]) => {
    const socket = net.connect({ path: join(env.DATA_DIR, 'postgres', 'requests'), allowHalfOpen: true })
    socket.setEncoding('utf8').end(JSON.stringify({ command }))
    let all = ''
    for await (const chunk of socket as AsyncIterable<string>) all += chunk
    return all.split('\n').filter((line) => line !== '').map((line) => JSON.parse(line))
  }
  t.match(await ask(['organization', 'list']), [{ part: { out: new RegExp(`^${id}\t`) } }, { result: 0 }])
  t.same(await ask(['project', 're-encryption', '--organization', 'none', '--project', 'orbit', '--json']), [
    { part: { err: 'There is no organization none' } }, { result: 1 }
  ])

  const { stdout } = await server.stop()
  t.strictSame(live, await answers())
  const logged = stdout.split('\n').filter((line) => line.includes('"operator command"')).map((line) => JSON.parse(line))
  t.match(logged[0], { command: 'audit', arguments: ['rotate-key', '--organization', id], status: 0 })
  t.ok(logged.some(({ arguments: [verb] }) => verb === 'export'), 'the log of the service says who read the audit')
})

t.test('a long command beside a service ends at Ctrl-C and when the service stops', async (t) => {
  const database = await connect({ dir: join(env.DATA_DIR, 'postgres'), pool: 1 })
  // `audit export` does not verify the events.
  await beside(() => database.db.execute(sql.raw(`INSERT INTO audit_events
      (organization_id, seq, action, actor_type, resource_type, user_agent, chain_kid, mac)
    SELECT '${ulid()}', n, 'secret.read', 'operator', 'secret', repeat('x', 200), 'none', '\\x00'
    FROM generate_series(1, 4000) n`))).finally(database.close)
  const server = await startServer(t, env)
  /** An export whose output is not read, so that it does not end. */
  const begin = async () => {
    const child = spawn(process.execPath, [CLI, 'audit', 'export'], {
      env: { PATH: process.env.PATH, ...env }, stdio: ['ignore', 'pipe', 'pipe']
    })
    t.teardown(() => child.kill('SIGKILL'))
    let stderr = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => { stderr += text })
    await once(child.stdout, 'readable')
    return { child, ended: once(child, 'exit').then(([code]) => ({ code, stderr })) }
  }
  const interrupted = await begin()
  interrupted.child.kill('SIGINT')
  t.match(await interrupted.ended, {
    code: 130,
    stderr: /Interrupted\. The export is incomplete: its last line is missing, so `audit verify --file` refuses it\.\n$/
  })

  const send = patient(client(server.address, owner))
  const [level] = await makeLevels(send, 'nova', ['live'])
  for (let i = 0; i < 3; i++) await store(send, level!, `A=${i}`)
  await rotate(send, level!, 're_encrypt')
  const wait = ['project', 're-encryption', '--organization', owner.organization, '--project', 'nova']
  // On a busy machine, the database of the service may not respond in time.
  await until(async () => (await command(wait, env)).stdout === '3 versions re-encrypted\n', { every: 0 })
  const left = await begin()
  t.match(await server.stop(), { code: 0 }, 'the stop does not wait for the reader')
  left.child.stdout.resume()
  t.match(await left.ended, { code: 1, stderr: /The service stops|ended before its response was complete/ })
})

t.test('rewrap beside a service uses the keys of the service, says so, and refuses another newest key', async (t) => {
  const place = { DATA_DIR: scratchDirectory(t), PORT: '0' }
  const old = { ...place, MASTER_KEY: OLD }
  const both = { ...place, MASTER_KEY: NEW, MASTER_KEYS_PREVIOUS: OLD }
  const first = await startServer(t, old)
  const stderr = (id: string) =>
    `Re-wrapping with the master keys with which the service started; the newest is ${id}\n`
  t.same(await command(['rewrap'], old), {
    code: 0, stdout: '0 values re-wrapped onto master key k1\n', stderr: stderr('k1')
  })
  for (const ended of [await command(['rewrap'], both), await command(['rewrap', '--onto', 'k2'], old)]) {
    t.same(ended, {
      code: 1,
      stdout: '',
      stderr: 'The newest master key of the service is k1, not k2: restart the service with k2 first\n'
    })
  }
  await first.stop()

  const server = await startServer(t, both)
  const ended = await cli(['rewrap', '--json'], both)
  t.match(ended, { code: 0, stderr: stderr('k2') })
  const outcome = JSON.parse(ended.stdout)
  t.match(outcome, { master_key: 'k2', failures: [], older: [{ id: 'k1', values: 0 }] })
  t.ok(outcome.rewrapped > 0)
  const send = patient(client(server.address, first.first!))
  const [level] = await makeLevels(send, 'orbit', ['live'])
  t.equal((await store(send, level!, 'A=1')).reply?.status, 200, 'the service goes on')
  t.equal((await server.stop()).code, 0)
  t.match(await command(['audit', 'verify'], { ...place, MASTER_KEY: NEW }), { code: 0 }, 'without the old key')
})

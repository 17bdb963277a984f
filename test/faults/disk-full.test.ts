// runs: one database; fault
import { spawnSync } from 'node:child_process'
import { closeSync, mkdtempSync, openSync, readdirSync, rmSync, statSync, unlinkSync, writeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { startIsolatedApp } from '../helpers/app.ts'
import { cycles, misread, recovers, report, watched } from '../helpers/faults.ts'
import { settle } from '../helpers/operations.ts'
import { judge, startPair, underLoad, untilMore, type Load } from '../helpers/pair.ts'
import { hasPostgres, startPostgres } from '../helpers/postgres.ts'
import { cli, command, scratchDirectory, startServer } from '../helpers/process.ts'
import { makeLevels, openQueries, replay, statuses, store, times, type Replayed, type Reply } from '../helpers/traffic.ts'

// The disk of the database is full. Tests PostgreSQL and the embedded database.

const MIB = 1 << 20

type Teardown = Pick<Test, 'teardown'>

/** Mounts a small disk in memory for the test. Throws if the process may not mount it. */
function makeDisk (t: Teardown, megabytes: number) {
  const dir = mkdtempSync(join(tmpdir(), 'strongroom-disk-'))
  t.teardown(() => rmSync(dir, { recursive: true, force: true }))
  const { status } = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m,mode=711`, 'tmpfs', dir])
  if (status !== 0) throw new Error('no disk can be mounted')
  // A lazy unmount works even if files on the disk are still open.
  t.teardown(() => spawnSync('umount', ['-l', dir]))
  const ballast = join(dir, 'ballast')
  return {
    dir,
    /** Fills the disk completely. */
    fill () {
      const file = openSync(ballast, 'w')
      try {
        for (let size = MIB; size >= 1; size >>= 1) {
          const bytes = Buffer.alloc(size)
          try {
            while (writeSync(file, bytes) === size);
          } catch (error) {
            if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error
          }
        }
      } finally {
        closeSync(file)
      }
      return statSync(ballast).size / MIB
    },
    free: () => unlinkSync(ballast)
  }
}

function canMount (): boolean {
  const after: (() => unknown)[] = []
  try {
    makeDisk({ teardown: (fn) => after.unshift(fn) }, 1)
    return true
  } catch {
    return false
  } finally {
    for (const one of after) one()
  }
}

const leftOut = !canMount() && 'a small disk takes root to mount, and CAP_SYS_ADMIN in a container'

t.test('RL-14 the disk of PostgreSQL is full: writes are refused, reads go on; later all works, nothing lost', {
  skip: leftOut || (!hasPostgres() && 'PostgreSQL is not installed')
}, async (t) => {
  const disk = makeDisk(t, 256)
  const database = await startPostgres({ within: disk.dir })
  t.teardown(database.close)
  const pair = await startPair(t, database.url)
  const { sends, beacon, servers } = pair
  const count = cycles(3)
  const loads: Load[] = []
  let recovery = 0
  for (let cycle = 0; cycle < count; cycle++) {
    const load = await underLoad(pair, async (load) => {
      await untilMore(load.written)
      disk.fill()
      await untilMore(load.refused, { by: 20 })
      const read: Reply[] = []
      for (const send of sends) {
        for (let i = 0; i < 5; i++) read.push(await send('GET', '/orbit/backend/live/secrets'))
      }
      t.same(statuses(read), [200], 'reads go on')
      t.same(await Promise.all(servers.map(async (_, i) => (await sends[i]!('GET', '//healthz')).status)), [200, 200])
      const freed = performance.now()
      disk.free()
      recovery = Math.max(recovery, await recovers(sends, beacon, freed))
      await untilMore(load.written)
    })
    loads.push(load)
  }
  await judge(t, database.url, pair, loads, { fault: 'Disk of PostgreSQL full', cycles: count, recovery })
})

t.test('RL-14 a full disk ends the embedded database with 1; the next start has all acknowledged writes', {
  skip: leftOut
}, async (t) => {
  const disk = makeDisk(t, 256)
  const dir = join(disk.dir, 'data')
  const env = { DATA_DIR: dir, RATE_LIMIT_API: '0', LOG_LEVEL: 'error' }
  let server = await startServer(t, env)
  const caller = server.first!
  let watch = watched(server.address, caller)
  const levels = await makeLevels(watch.send, 'orbit', ['live', 'beta'])
  const count = cycles(3)
  let recovery = 0
  let slowest = 0
  for (let cycle = 0; cycle < count; cycle++) {
    for (let i = 0; i < 20; i++) await store(watch.send, levels[i % 2]!, `VALUE=${cycle}-${i}`)
    disk.fill()
    let refused: number | undefined
    const ended = server.ended
    // Existing files still have some free space.
    await Promise.all(times(4, async (writer) => {
      for (let i = 0; server.child.exitCode === null; i++) {
        const { reply } = await store(watch.send, levels[writer % 2]!, `VALUE=${'x'.repeat(4096)}${i}`)
        if (reply?.status !== 200) refused ??= performance.now()
      }
    }))
    t.equal((await ended).code, 1)
    slowest = Math.max(slowest, performance.now() - refused!)
    disk.free()
    const began = performance.now()
    server = await startServer(t, env)
    watch = watched(server.address, caller, watch)
    recovery = Math.max(recovery, await recovers(watch.send, levels[0]!, began))
  }
  t.ok(slowest < 5_000, `it ended ${Math.round(slowest)} ms after the first refusal`)
  t.equal((await server.stop()).code, 0)
  let replayed: Replayed | undefined
  await t.test('what the tables and the audit tell', async (t) => {
    replayed = await replay(await openQueries(t, { dir: join(dir, 'postgres') }), caller.organization, watch.operations)
    t.same(replayed.problems, [])
  })
  t.match(await command(['audit', 'verify'], env), { code: 0 })
  const last = await startServer(t, env)
  const wrong = [
    ...replayed!.problems,
    ...await misread(watched(last.address, caller, watch).send, replayed!)
  ]
  t.same(wrong, [])
  report(t, {
    fault: 'Disk of the embedded database full',
    cycles: count,
    acknowledged: watch.acknowledged(),
    lost: wrong.length,
    outside: watch.outside,
    exits: 0,
    recovery,
    note: `ends ${Math.round(slowest)} ms after the first refusal`
  })
})

t.test('a backup that the disk has no room for ends at once, and says where', { skip: leftOut }, async (t) => {
  // This test has its own database, because it fills the disk of the database.
  const service = await startIsolatedApp(t)
  await settle(service, 'large')
  // Writes about 30 MB. The file system has enough space for these rows, but not for the database with its indexes.
  for (let i = 0; i < 30; i++) {
    await service.sql(`INSERT INTO sign_in_failures (key, failures)
      SELECT decode((SELECT string_agg(md5('${i}-' || j || '-' || k), '') FROM generate_series(1, 125) k), 'hex'), 1
      FROM generate_series(1, 500) j`)
  }
  const file = join(scratchDirectory(t), 'backup')
  t.equal((await command(['backup', file], service.env)).code, 0)
  const disk = makeDisk(t, 64)
  const { MASTER_KEY = '' } = service.env
  const drilled = await cli(['drill', file], { MASTER_KEY, TMPDIR: disk.dir })
  t.same(drilled, { code: 2, stdout: '', stderr: `No space is left in ${disk.dir} (TMPDIR)\n` })
  t.strictSame(readdirSync(disk.dir), [], 'and nothing is left there')
  const dir = join(disk.dir, 'data')
  const restored = await cli(['restore', file], { MASTER_KEY, DATA_DIR: dir })
  t.same(restored, { code: 1, stdout: '', stderr: `No space is left in ${join(dir, 'postgres')}\n` })
})

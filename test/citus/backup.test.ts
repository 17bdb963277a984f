// runs: Citus; 60 s
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { makeLevel, startIsolatedApp } from '../helpers/app.ts'
import { createOnCitus, dropOnCitus, useOwnCitus } from '../helpers/citus.ts'
import { makePerson, makeTeam } from '../helpers/people.ts'
import { command, scratchDirectory } from '../helpers/process.ts'

t.setTimeout(300_000)

const ORGANIZATIONS = 4

const { nodes } = await useOwnCitus(t)

t.test('a backup under load is consistent for each organization; PostgreSQL and Citus can restore it', async (t) => {
  // This test has its own database, because it makes a backup of the whole cluster.
  const service = await startIsolatedApp(t)
  const callers = await Promise.all(Array.from({ length: ORGANIZATIONS }, () => service.organization()))
  const levels = await Promise.all(callers.map((caller) => makeLevel(caller)))
  const over = new AbortController()
  const working = Promise.all(callers.map(async (caller, i) => {
    const o = caller.organization
    for (let n = 0; !over.signal.aborted; n++) {
      const { status, text } = await caller.call('POST', `/${o}/secrets/store`, { ...levels[i], plaintext: `A=${n}` })
      if (status !== 200) t.fail(`${status} ${text}`)
      // A new account. Rows of the organization refer to it at once.
      const person = await makePerson(service, { [o]: 'developer' })
      await makeTeam(service, o, [person], { [levels[i]!.project]: 'developer' })
    }
  }))
  await pause(1_000)

  const directory = scratchDirectory(t)
  const file = join(directory, 'backup')
  const env = { ...service.env }
  for (let i = 0; i < 2; i++) {
    const made = await command(['backup', `${file}-${i}`], env)
    t.match(made, { code: 0, stdout: /^Backed up \d+ organizations?/ }, `${made.stderr}`)
    const drilled = await command(['drill', `${file}-${i}`], env)
    t.match(drilled, { code: 0 }, `${drilled.stdout}${drilled.stderr}`)
  }
  over.abort()
  await working

  const digest = (text: string) => /digest (\w+)/.exec(text)?.[1]
  const last = await command(['backup', `${file}-last`], env)
  const url = await createOnCitus(nodes.map((node) => node.url), 'restored')
  t.teardown(() => dropOnCitus(nodes.map((node) => node.url), 'restored'))
  for (const [i, place] of [['DATA_DIR', join(directory, 'data')], ['DATABASE_URL', url]].entries()) {
    const there = { MASTER_KEY: env.MASTER_KEY!, [place[0]!]: place[1]! }
    const restored = await command(['restore', `${file}-last`], there)
    t.equal(digest(restored.stdout), digest(last.stdout), `${restored.stderr}`)
    const verified = await command(['audit', 'verify'], there)
    t.match(verified, { code: 0 }, `${verified.stdout}${verified.stderr}`)
    const again = await command(['backup', `${file}-again-${i}`], there)
    t.equal(digest(again.stdout), digest(last.stdout), `${again.stderr}`)
  }
})

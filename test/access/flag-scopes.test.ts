// runs: one database, embedded
import t from 'tap'
import { makeLevel, startApp } from '../helpers/app.ts'

// A flag in a query has several spellings. Each spelling needs the scope of the flag.

const test = await startApp(t)
const owner = await test.organization()
const org = owner.organization

t.test('decrypt needs secret:decrypt in each spelling of the flag', async (t) => {
  const at = await makeLevel(owner, { slug: 'flags' })
  const stored = await owner.call('POST', `/${org}/secrets/store`, { ...at, plaintext: 'A=canary-value\n' })
  t.equal(stored.status, 200, stored.text)
  const reader = await test.token(org, ['secret:read'])
  const path = `/${org}/flags/backend/live/secrets`
  for (const word of ['true', 'True', 'TRUE', '1']) {
    for (const query of [`decrypt=${word}`, `decrypt=${word}&merge=true`, `raw=${word}&decrypt=${word}`]) {
      const answer = await reader.call('GET', `${path}?${query}`)
      t.match(answer, { status: 403, body: { error: 'insufficient_permissions', details: { required_scope: 'secret:decrypt' } } }, query)
      t.notMatch(answer.text, 'canary-value')
      t.equal((await owner.call('GET', `${path}?${query}`)).status, 200, query)
    }
  }
  for (const word of ['false', 'FALSE', '0']) {
    t.equal((await reader.call('GET', `${path}?decrypt=${word}`)).status, 200, word)
  }
})

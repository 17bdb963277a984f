import type { FastifyRequest } from 'fastify'
import { inTurn } from '../../src/http/guard/turns.ts'
import type { Answer, Caller } from './app.ts'

/** Whether a request waits while another read of the organization has its turn. The request must succeed after it. */
export async function waitsForTurn (caller: Caller, ask: () => Promise<Answer>): Promise<boolean> {
  let release = () => {}
  const other = {
    principal: { organization: { id: caller.organization }, type: 'user', id: 0 },
    server: { authorizeAgain: async () => {} }
  }
  const held = inTurn(other as unknown as FastifyRequest, () => new Promise<void>((resolve) => { release = resolve }))
  let isAnswered = false
  const asked = ask().then((answer) => {
    isAnswered = true
    return answer
  })
  // Sends more sequential requests than a list could need.
  for (let i = 0; i < 12; i++) await caller.call('GET', `/organizations/${caller.organization}/api-keys?per_page=1`)
  const isWaiting = !isAnswered
  release()
  await held
  const { status, text } = await asked
  if (status !== 200) throw new Error(text)
  return isWaiting
}

/** The child process of `startStorm`: answers each `Order` message with a `Storm`, and exits with its parent. */
import { connect, type Socket } from 'node:net'
import type { Asked, Order, Storm } from './storm.ts'
import { random } from './traffic.ts'

// A storm returns one of this number of successful responses.
const ONE_OF = 500

const now = () => performance.timeOrigin + performance.now()

process.on('message', (order: Order) => {
  rage(order).then((storm) => process.send!(storm), (error) => { throw error })
})
process.on('disconnect', () => process.exit())

async function rage (order: Order): Promise<Storm> {
  const next = random(order.seed)
  const begun = now()
  const asked: Asked[] = []
  const answers = new Map<string, Storm['answers'][number]>()
  const connection = connectionsTo(order.address, order.patience)

  function requestOf (number: number) {
    const { organization, token, levels, stores, seed } = order
    const level = levels[number % levels.length]!
    const common = `Host: x\r\nAuthorization: Bearer ${token}\r\nX-Request-Id: storm-${seed}-${number}\r\n`
    const one: Asked = { request: `storm-${seed}-${number}`, level, sent: now(), answered: 0, isFirst: false, status: 0 }
    if (next() >= stores) {
      const path = `/${Object.values(level).join('/')}/secrets`
      return { one, method: 'GET', path, text: `GET /api/v1/${organization}${path} HTTP/1.1\r\n${common}\r\n` }
    }
    one.plaintext = `VALUE=${number}-${'x'.repeat(200)}`
    const body = JSON.stringify({ ...level, plaintext: one.plaintext })
    const head = `${common}Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`
    const path = '/secrets/store'
    return { one, method: 'POST', path, text: `POST /api/v1/${organization}${path} HTTP/1.1\r\n${head}${body}` }
  }

  await Promise.all(Array.from({ length: order.clients }, async () => {
    const send = connection()
    while (now() < begun + order.seconds * 1000) {
      const { one, method, path, text } = requestOf(asked.length)
      asked.push(one)
      one.isFirst = !send.isOpen()
      const answer = await send(text)
      one.answered = now()
      if (answer === undefined) continue
      one.status = Number(answer.slice(9, 12))
      if (one.plaintext !== undefined) one.version = /"version":"(\d+)"/.exec(answer)?.[1]
      const kind = one.status < 300 ? `${asked.length % ONE_OF === 0 && asked.length}` : `${method} ${one.status}`
      if (!answers.has(kind)) answers.set(kind, { method, path, text: answer })
    }
    send.close()
  }))
  return { begun, asked, answers: [...answers.values()] }
}

/** Creates clients that keep their connection, and open a new connection if it is closed. */
function connectionsTo (address: string, patience: number) {
  const { hostname, port } = new URL(address)
  return () => {
    let socket: Socket | undefined
    let received = ''
    let whole = Infinity
    let done: ((answer: string | undefined) => void) | undefined
    let late: NodeJS.Timeout | undefined

    const end = (answer?: string) => {
      clearTimeout(late)
      received = ''
      whole = Infinity
      done?.(answer)
      done = undefined
    }
    const close = () => {
      socket?.destroy()
      socket = undefined
    }
    function open (): Socket {
      const mine = connect(Number(port), hostname).setNoDelay(true).setEncoding('latin1')
      mine.on('error', () => {}).on('close', () => {
        if (mine !== socket) return
        socket = undefined
        end()
      })
      mine.on('data', (chunk: string) => {
        received += chunk
        if (whole === Infinity) {
          const head = received.indexOf('\r\n\r\n')
          if (head === -1) return
          whole = head + 4 + Number(/\r\ncontent-length: (\d+)/i.exec(received.slice(0, head))?.[1] ?? 0)
        }
        if (received.length < whole) return
        if (/\r\nconnection: close/i.test(received)) close()
        end(received)
      })
      socket = mine
      return mine
    }
    const send = (text: string) => new Promise<string | undefined>((resolve) => {
      done = resolve
      late = setTimeout(() => {
        close()
        end()
      }, patience);
      (socket ?? open()).write(text, 'latin1')
    })
    return Object.assign(send, { close, isOpen: () => socket !== undefined })
  }
}

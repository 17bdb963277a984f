import { once } from 'node:events'
import { createServer, type AddressInfo, type Socket } from 'node:net'

/** A received e-mail: the envelope, the headers and the decoded text. */
export interface Received { from: string, to: string[], headers: string, text: string }

/** How the mail server fails. Its error messages quote the client's commands, like those of some real servers. */
export type Mood = 'silent' | 'refuses-password' | 'refuses-recipient' | 'hangs-up'

/** Starts a minimal SMTP server (RFC 5321) on the loopback interface, without TLS. */
export async function startMailServer (t: { teardown (fn: () => unknown): void }, mood?: Mood) {
  const mails: Received[] = []
  const commands: string[] = []
  const sockets = new Set<Socket>()
  const held: (() => void)[] = []
  const refused = new Set<string>()
  let isHolding = false
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.on('close', () => sockets.delete(socket))
    if (mood !== 'silent') converse(socket)
  }).listen(0)
  await once(server, 'listening')
  const close = () => {
    for (const socket of sockets) socket.destroy()
    server.close()
  }
  t.teardown(close)
  return {
    port: (server.address() as AddressInfo).port,
    mails,
    commands,
    /** Addresses that the server refuses. */
    refused,
    /** Stops the server; later connections fail. */
    close,
    /** Receives further e-mails without confirming them, so that their senders wait. */
    hold () { isHolding = true },
    /** Confirms `many` held e-mails; without a number, confirms all and stops holding. */
    release (many?: number) {
      if (many === undefined) isHolding = false
      for (const go of held.splice(0, many ?? held.length)) go()
    }
  }

  function converse (socket: Socket) {
    const say = (line: string) => socket.write(`${line}\r\n`)
    let [from, to, rest, inside] = ['', [] as string[], '', false]
    say('220 mail.test ESMTP')
    socket.setEncoding('utf8').on('data', (text: string) => {
      rest += text
      for (;;) {
        const end = rest.indexOf(inside ? '\r\n.\r\n' : '\r\n')
        if (end < 0) return
        const piece = rest.slice(0, end)
        rest = rest.slice(end + (inside ? 5 : 2))
        if (!inside) answer(piece)
        else {
          inside = false
          mails.push({ from, to, ...partsOf(piece) })
          if (isHolding) held.push(keepWaiting(say))
          else say('250 taken')
        }
      }
    })

    function answer (line: string) {
      commands.push(line)
      if (/^EHLO/i.test(line)) say('250-mail.test\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 AUTH PLAIN')
      else if (/^AUTH PLAIN /i.test(line)) {
        say(mood === 'refuses-password'
          ? `535 5.7.8 ${Buffer.from(line.slice(11), 'base64').toString().replaceAll('\0', ' ')}`
          : '235 welcome')
      } else if (/^MAIL FROM:/i.test(line)) {
        from = addressIn(line)
        to = []
        if (mood === 'hangs-up') socket.destroy()
        else say('250 fine')
      } else if (/^RCPT TO:/i.test(line)) {
        to.push(addressIn(line))
        say(mood === 'refuses-recipient' || refused.has(addressIn(line)) ? `550 5.1.1 ${addressIn(line)} is not here` : '250 fine')
      } else if (/^DATA$/i.test(line)) {
        inside = true
        say('354 go on')
      } else if (/^QUIT$/i.test(line)) socket.end('221 bye\r\n')
      else say('502 not here')
    }
  }
}

// Sends a multi-line response slowly, so that the sender's timeout does not end the wait.
function keepWaiting (say: (line: string) => void) {
  say('250-soon')
  const beat = setInterval(() => say('250-soon'), 1_000).unref()
  return () => {
    clearInterval(beat)
    say('250 taken')
  }
}

const addressIn = (line: string) => /<(.*)>/.exec(line)?.[1] ?? ''

function partsOf (raw: string): { headers: string, text: string } {
  // Removes the full stop that SMTP adds to lines that start with a full stop (RFC 5321, 4.5.2).
  const [headers = '', ...body] = raw.replace(/^\.\./gm, '.').split('\r\n\r\n')
  const joined = body.join('\r\n\r\n')
  const encoding = /^Content-Transfer-Encoding: (.*)$/im.exec(headers)?.[1]
  if (encoding === 'base64') return { headers, text: Buffer.from(joined, 'base64').toString() }
  if (encoding !== 'quoted-printable') return { headers, text: joined }
  const bytes = joined.replace(/=\r\n/g, '').replace(/=([0-9A-F]{2})/g, (_, hex: string) =>
    String.fromCharCode(parseInt(hex, 16)))
  return { headers, text: Buffer.from(bytes, 'latin1').toString() }
}

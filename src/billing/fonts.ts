import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { create, type Font } from 'fontkit'

/** A font of the service, and what it has glyphs for. */
export interface Face { name: string, bytes: Buffer, has: (codePoint: number) => boolean }

const { resolve } = createRequire(import.meta.url)
const dejaVu = (file: string) => () => resolve(`dejavu-fonts-ttf/ttf/${file}`)
// These packages export where their fonts are to bundlers alone.
const noto = (name: string, file: string) => () => join(dirname(resolve(name)), '..', 'fonts', file)

// What the first has no glyph for is looked for in the next: Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian and
// Georgian; Chinese and Japanese; Korean.
const FACES = {
  regular: [
    dejaVu('DejaVuSans.ttf'), noto('@embedpdf/fonts-sc', 'NotoSansHans-Regular.otf'),
    noto('@embedpdf/fonts-kr', 'NotoSansKR-Regular.otf')
  ],
  bold: [
    dejaVu('DejaVuSans-Bold.ttf'), noto('@embedpdf/fonts-sc', 'NotoSansHans-Bold.otf'),
    noto('@embedpdf/fonts-kr', 'NotoSansKR-Bold.otf')
  ]
}
export type Weight = keyof typeof FACES

const loaded = new Map<string, Face>()

// Read when a text first needs it: most need the first alone.
function faceOf (weight: Weight, i: number): Face {
  const name = `${weight}-${i}`
  const known = loaded.get(name)
  if (known !== undefined) return known
  const bytes = readFileSync(FACES[weight][i]!())
  const font = create(bytes) as Font
  const face = { name, bytes, has: (codePoint: number) => font.hasGlyphForCodePoint(codePoint) }
  loaded.set(name, face)
  return face
}

// They change the order of what stands beside them, and show nothing.
const HIDDEN = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g

/** A text in runs that one face each can show; what none can is a box of the first. */
export function runsOf (text: string, weight: Weight): { face: Face, text: string }[] {
  const runs: { face: Face, text: string }[] = []
  for (const character of text.normalize('NFC').replace(HIDDEN, '')) {
    const face = faceFor(character.codePointAt(0)!, weight, runs.at(-1)?.face)
    const last = runs.at(-1)
    if (last?.face === face) last.text += character
    else runs.push({ face, text: character })
  }
  return runs
}

function faceFor (codePoint: number, weight: Weight, current: Face | undefined): Face {
  // Spaces and the like go on in the face that they stand in.
  if (codePoint < 0x30 && current !== undefined) return current
  for (const i of FACES[weight].keys()) {
    const face = faceOf(weight, i)
    if (face.has(codePoint)) return face
  }
  return faceOf(weight, 0)
}

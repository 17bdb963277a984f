/** A count with its noun in singular or plural: `1 version`, `2 versions`. */
export const counted = (number: number, noun: string): string => `${number} ${noun}${number === 1 ? '' : 's'}`

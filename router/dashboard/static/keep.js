// What the browser remembers of a person's choices. One that keeps nothing is no error.

const reading = (store, name) => {
  try {
    return store.getItem(name);
  } catch {
    return null;
  }
};

const writing = (store, name, value) => {
  try {
    if (value === null) store.removeItem(name);
    else store.setItem(name, value);
  } catch {
    // Private windows and full stores: the choice holds until the page is closed.
  }
};

export const recall = (name) => reading(localStorage, `router-${name}`);
export const remember = (name, value) => writing(localStorage, `router-${name}`, value);
export const recallSession = (name) => reading(sessionStorage, `router-${name}`);
export const rememberSession = (name, value) => writing(sessionStorage, `router-${name}`, value);

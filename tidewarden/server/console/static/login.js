/** The page that asks for a user and its secret. */

import { toldOf } from "./dialog.js";
import { h } from "./dom.js";
import { login } from "./session.js";

/**
 * Makes the page.
 * @param {string} reason why it is shown, if not at the beginning
 * @param {() => void} done what follows a login
 */
export function loginPage(reason, done) {
  const wrong = h("p", { class: "note wrong", role: "alert", hidden: !reason }, reason);
  const user = h("input", { id: "user", name: "user", autocomplete: "username",
    autocapitalize: "none", spellcheck: "false" });
  const secret = h("input", { id: "secret", name: "secret", type: "password", required: true,
    autocomplete: "current-password" });
  const button = h("button", { class: "primary" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await login(user.value.trim(), secret.value);
      secret.value = "";
      done();
    } catch (error) {
      wrong.hidden = false;
      wrong.textContent = toldOf(error);
      secret.select();
    } finally {
      button.disabled = false;
    }
  };
  return [
    h("h1", {}, "Log in"),
    h("form", { class: "login", method: "post", action: "/console/login", on: { submit } },
      wrong,
      h("p", { class: "field" }, h("label", { for: "user" }, "User"), user),
      h("p", { class: "field" }, h("label", { for: "secret" }, "Secret"), secret),
      button),
    h("p", { class: "quiet" }, "A user of this cluster’s configuration, and its secret. ",
      h("code", {}, "tidewarden up"), " says where it keeps that of its admin. The login holds on",
      " all nodes of the cluster."),
  ];
}

"""One static archive of C++ libraries and of all that they depend on."""

def _archive(ctx):
    linking = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).linking_context
    parts = []
    flags = []
    for linker_input in linking.linker_inputs.to_list():
        for library in linker_input.libraries:
            part = library.pic_static_library or library.static_library
            if part:
                parts.append(part)
        for flag in linker_input.user_link_flags:
            # A library that is named twice keeps its last position.
            if flag in flags:
                flags.remove(flag)
            flags.append(flag)

    # The script for `ar -M`.
    script = ctx.actions.declare_file(ctx.label.name + ".mri")
    ctx.actions.write(script, "\n".join(
        ["create " + ctx.outputs.archive.path] +
        ["addlib " + part.path for part in parts] +
        ["save", "end", ""],
    ))
    ctx.actions.run_shell(
        inputs = parts + [script],
        outputs = [ctx.outputs.archive],
        # With D, the same objects give the same archive: it contains no times and users.
        command = "ar -M <%s && ranlib -D %s" % (script.path, ctx.outputs.archive.path),
        mnemonic = "Archive",
    )
    ctx.actions.write(ctx.outputs.flags, " ".join(flags) + "\n")

archive = rule(
    implementation = _archive,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
    doc = "Makes libNAME.a, and NAME.libs: the options that link what the archive needs.",
    outputs = {
        "archive": "lib%{name}.a",
        "flags": "%{name}.libs",
    },
)
